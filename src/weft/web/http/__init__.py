"""What both interfaces share: their documents in OpenAPI, and JSON in the bodies of requests."""
