"""Small worlds of durable senders and receivers, and a search through all that can happen in them."""
