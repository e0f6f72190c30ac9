"""What every measuring command needs: a quota of its own, a progress bar."""
