"""Who may talk to the service, and how it proves who it is. Knows no request."""
