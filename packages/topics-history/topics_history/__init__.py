"""Histories of clients of topics, and the checker that compares them with what the service promises.

`format` is a history as bytes, `checker` the pass over one, `evidence` what it keeps. The rules are functions in
`log_rules`, `stream_rules`, `lease_rules` and `copy_rules`; each yields `violations`.
"""

from topics_history.checker import Report as Report
from topics_history.checker import check as check
from topics_history.format import HistoryError as HistoryError
from topics_history.violations import Violation as Violation
