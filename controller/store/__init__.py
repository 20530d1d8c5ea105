"""Every event and every decision, durable before anything acts on them; state recovered from them."""
