"""The API: turns a request into its response, by way of one shard or all of them."""
