"""fla-bot: the gate for kernel pull requests in flash-linear-attention style repositories."""
