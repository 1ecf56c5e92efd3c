package asynqonce

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
)

// asynq archives a task whose retries are used up whatever its error is, before it asks Config.IsFailure; and it does so by itself
// when the task's time is up. So a task that is to come back although it has no retries left must not wait in its worker, where its
// time runs out, or is used up before its handler begins. It is enqueued anew, and then revoked: in this order, so that a worker that
// dies in between leaves one too many, which is a duplicate as others are.

// tasks are the queues.
type tasks struct {
	rdb    redis.UniversalClient
	client *asynq.Client
	look   *asynq.Inspector
}

func openTasks(at asynq.RedisConnOpt) (*tasks, error) {
	rdb, ok := at.MakeRedisClient().(redis.UniversalClient)
	if !ok {
		return nil, fmt.Errorf("Options.Redis is a %T, which makes no client of go-redis", at)
	}
	return &tasks{rdb, asynq.NewClientFromRedisClient(rdb), asynq.NewInspectorFromRedisClient(rdb)}, nil
}

// patience is for how long the queues are asked when the task's own time is up.
const patience = 5 * time.Second

// copied stands between the ID of a task and what makes that of its copy another one.
const copied = "~again-"

// enqueueAnew enqueues a copy of the task that ctx is of, to come after a while. It has all of its settings but Unique, which asynq
// does not tell, and no retries either.
func (q *tasks) enqueueAnew(ctx context.Context, t *asynq.Task, in time.Duration) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	id, _ := asynq.GetTaskID(ctx)
	queue, _ := asynq.GetQueueName(ctx)
	info, err := q.look.GetTaskInfo(queue, id)
	if err != nil {
		return fmt.Errorf("task %s of queue %s: %w", id, queue, err)
	}
	if at := strings.LastIndex(id, copied); at >= 0 {
		id = id[:at]
	}
	_, err = q.client.EnqueueContext(ctx, asynq.NewTaskWithHeaders(t.Type(), t.Payload(), t.Headers()),
		asynq.TaskID(id+copied+rand.Text()), asynq.Queue(queue), asynq.MaxRetry(0), asynq.ProcessIn(in),
		asynq.Timeout(info.Timeout), asynq.Deadline(info.Deadline), asynq.Retention(info.Retention))
	if err != nil {
		return fmt.Errorf("task %s of queue %s: %w", id, queue, err)
	}
	return nil
}
