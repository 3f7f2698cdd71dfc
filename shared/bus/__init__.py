"""RabbitMQ: what exists there, what is said there, and the one class that talks to it."""
