from shardd.server import run

run()
