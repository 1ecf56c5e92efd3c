package watermillonce

import (
	_ "github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/redis/go-redis/v9"
	_ "go.uber.org/goleak"
)
