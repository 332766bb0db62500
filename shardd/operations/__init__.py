"""One module for each kind of request on topics. Queues and routers have folders of their own."""
