"""What pyproject.toml cannot say: packages are found, and `deploy` is one of them under a name of ours."""

from setuptools import find_packages, setup

NAMES = ("gateway", "shardd", "supervisor", "proto", "topics_server")
DEPLOY = ("systemd", "proxy", "prometheus", "grafana")

setup(
    packages=[
        *find_packages(include=[*NAMES, *(f"{name}.*" for name in NAMES)]),
        "topics_server.deploy",
        *(f"topics_server.deploy.{name}" for name in DEPLOY),
    ]
)
