from proto.model.errors import STATUS, ErrorCode, TopicsError, invalid, not_ready


def test_every_code_has_one_status() -> None:
    assert set(STATUS) == set(ErrorCode)
    assert all(400 <= status <= 599 for status in STATUS.values())


def test_codes_are_snake_case() -> None:
    assert all(code.value == code.name.lower() for code in ErrorCode)


def test_errors_carry_what_their_sender_gets() -> None:
    error = invalid("limit is -1", field="limit")
    assert (error.status, error.code, error.detail) == (400, "invalid_request", {"field": "limit"})
    assert not_ready("replaying").retry_after_ms == 1000
    assert TopicsError(ErrorCode.INTERNAL, "x").detail is None
