from shardd.process.loop import run

run()
