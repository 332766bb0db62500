"""From the log into segments and a catalog; and what of those cannot be read. The way back is `shardd.recovery`."""
