"""What pyproject.toml cannot say: packages are found; `deploy`, the Python client and the readers get other names."""

from setuptools import find_packages, setup

NAMES = ("gateway", "shardd", "supervisor", "proto", "topics_server")
READERS = [name for name in find_packages(include=["pyspark_topics*"]) if not name.endswith(".jobs")]
DEPLOY = ("systemd", "proxy", "prometheus", "grafana")

setup(
    packages=[
        *find_packages(include=[*NAMES, *(f"{name}.*" for name in NAMES)]),
        "topics_server.deploy",
        *(f"topics_server.deploy.{name}" for name in DEPLOY),
        "topics_server.client.topics_client",
        *(f"topics_server.readers.{name}" for name in READERS),
    ]
)
