"""The program between passes, and what everybody asks of it: each question and each rewriting once."""
