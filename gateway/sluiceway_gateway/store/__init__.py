"""SQL, and nothing but SQL: one module a noun."""
