"""What an experiment came to: figures, tables, pictures, files and the sentence at the end."""
