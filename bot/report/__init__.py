"""The report: what is decided (checklist) and how it is shown (terminal, Markdown)."""
