"""Control of what runs: who makes way, and what is kept of it."""
