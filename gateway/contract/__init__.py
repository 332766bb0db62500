"""The contract with clients: the table of operations, the rights each needs, the form of responses and errors.
`gateway.api` carries the operations out.
"""
