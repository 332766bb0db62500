"""What pyproject.toml cannot say: packages are found, and `deploy` and the Python client get names of their own."""

from setuptools import find_packages, setup

NAMES = ("gateway", "shardd", "supervisor", "proto", "topics_server")
DEPLOY = ("systemd", "proxy", "prometheus", "grafana")

setup(
    packages=[
        *find_packages(include=[*NAMES, *(f"{name}.*" for name in NAMES)]),
        "topics_server.deploy",
        *(f"topics_server.deploy.{name}" for name in DEPLOY),
        "topics_server.client.topics_client",
    ]
)
