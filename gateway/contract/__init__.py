"""The contract with clients: the table of operations, who may use which, and what errors and answers
look like. What an operation does is in `gateway.api`.
"""
