"""The command `topics`: options in, text and exit statuses out. What is done is done elsewhere."""
