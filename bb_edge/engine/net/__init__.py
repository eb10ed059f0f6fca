"""What comes in and goes out: queues, admission, routing, sending, peers, requests."""
