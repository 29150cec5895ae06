"""The app in a browser: one engine, one web server on this machine only, one app process a tab."""
