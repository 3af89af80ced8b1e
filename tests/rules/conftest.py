"""The folders here are text for tests of rules: pytest must not take them for tests of its own."""

collect_ignore_glob = ["*"]
