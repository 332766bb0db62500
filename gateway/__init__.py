"""The gateway: serves clients over HTTP and the line protocols. `shardd` keeps records; `supervisor` runs processes."""
