"""The words of the contract, as every process knows them: names, keys, errors, limits, bodies."""
