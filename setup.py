"""What pyproject.toml cannot say: packages are found, and `deploy` is one of them under a name of ours."""

from setuptools import find_packages, setup

NAMES = ("gateway", "shardd", "supervisor", "proto", "topics_server")

setup(packages=[*find_packages(include=[*NAMES, *(f"{name}.*" for name in NAMES)]), "topics_server.deploy"])
