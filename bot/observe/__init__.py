"""The pytest plugin that says what tests did and which calls they made; runs untrusted."""
