"""Jobs in PostgreSQL: statements, migrations, and what is asked of them."""
