"""The API server: how it is reached, what it holds, and caches that stay true to it. Nothing here decides."""
