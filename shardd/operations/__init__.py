"""Operations: one module for each kind of request on topics. Queues and routers have their own folders."""
