"""Several machines: who is there, which shards each of them holds, and how one is handed over. No I/O, and no clock.

Who holds a shard is decided by terms and fences alone, in `shardd.replication`: a wrong decision here costs time.
"""
