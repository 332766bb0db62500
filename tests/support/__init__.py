"""Support for tests: services, fakes and clients that several tests share."""
