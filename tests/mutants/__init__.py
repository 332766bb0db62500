"""Mutants: errors that are put into a copy of the product, to see that the bar of each finds it (`make mutants`).

`catalogue` has them and makes the copies, `hunt` runs the bars.
"""
