// Package amqplater lets messages of RabbitMQ come back after a while: it is what Options.Later of watermillonce needs.
//
//	config := amqp.NewDurableQueueConfig(url)
//	config.Marshaler = amqplater.Marshaler(config.Marshaler) // of the subscriber
//	subscriber, err := amqp.NewSubscriber(config, logger)
//	config, err = amqplater.Config(config, nil)
//	later, err := amqp.NewPublisher(config, logger)          // its topic is that of the subscriber
//
// Messages wait in a queue that nobody consumes, in the order in which they come and each for the same time; then the broker moves
// them to the end of the queue of the subscriber. The waiting queue is named after that queue and the delay. It is made when the first message
// is sent to it, or by Declare.
//
// It is a quorum queue, which passes a message on until the other queue has confirmed it, so that none is lost when a server dies. That takes
// RabbitMQ 3.10. A classic queue, which is quicker, drops messages that it cannot pass on at the moment they are due. A single RabbitMQ 3.10 that is
// killed (as by kill -9) within some minutes of making a quorum queue forgets the queue and what waits in it: call Declare when you deploy.
//
// Whoever deletes the waiting queue while publishers are connected loses what is sent to it, without an error: AMQP has none for that.
package amqplater

import (
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/holdlock/holdlock"
	watermillonce "github.com/holdlock/holdlock/adapters/watermill"
)

// Options are for Config; nil means all defaults.
type Options struct {
	Delay   time.Duration // whole milliseconds, at least watermillonce.MinDelay, which is the default
	Classic bool          // the waiting queue is a durable classic queue
}

// Config returns the settings of a publisher by which messages come back to the queue that subscriber, the settings of a subscriber,
// makes of the same topic. A subscriber that could not read what comes back is refused (holdlock.ErrInvalid): it needs Marshaler, which is tried on
// a message made for that. Publish waits until the broker has the message. It opens a channel for each, whatever Publish.ChannelPoolSize says: with a
// pool, publishers of watermill-amqp 3.0 can wait for ever once their connection was cut. Their Close can, too, if the connection is cut at that very
// moment: do not let the end of a program depend on it.
func Config(subscriber amqp.Config, opts *Options) (amqp.Config, error) {
	var o Options
	if opts != nil {
		o = *opts
	}
	if o.Delay == 0 {
		o.Delay = watermillonce.MinDelay
	}
	if o.Delay < watermillonce.MinDelay || o.Delay%time.Millisecond != 0 {
		return amqp.Config{}, fmt.Errorf("amqplater: %w", &holdlock.InvalidError{What: "Delay", Value: o.Delay.String(), Why: fmt.Sprintf("at least %s, and whole milliseconds", watermillonce.MinDelay)})
	}
	if subscriber.Queue.GenerateName == nil || subscriber.Marshaler == nil {
		return amqp.Config{}, errors.New("amqplater: these are not the settings of a subscriber: Queue.GenerateName or Marshaler is not set")
	}
	if refusesReturned(subscriber.Marshaler) {
		return amqp.Config{}, fmt.Errorf("amqplater: %w", &holdlock.InvalidError{
			What: "Marshaler", Value: fmt.Sprintf("%T", subscriber.Marshaler),
			Why: "it cannot read messages that have waited, so each would be refused for ever; give the subscriber amqplater.Marshaler around it",
		})
	}
	suffix := ".later." + o.Delay.String()
	queue := subscriber.Queue.GenerateName
	c := subscriber
	c.Exchange = amqp.ExchangeConfig{Type: "fanout", Durable: true, GenerateName: func(topic string) string { return queue(topic) + suffix }}
	c.Publish = amqp.PublishConfig{
		GenerateRoutingKey: func(string) string { return "" },
		ConfirmDelivery:    true, // the message is acknowledged next
		// No pool of channels: the framework's loses a channel whenever it cannot open one, as when a connection is cut, and Publish then
		// waits for one for ever, and with it the handler, which keeps its message.
		ChannelPoolSize: 0,
	}
	c.TopologyBuilder = waiting{suffix, &o}
	return c, nil
}

// Declare makes the queue in which messages for the subscriber of this topic wait, and the exchange in front of it. config is from Config. It
// changes nothing if they are there; it is an error if they are there with other settings. Without it the first message makes them.
func Declare(channel *amqp091.Channel, config amqp.Config, topic string) error {
	return config.TopologyBuilder.ExchangeDeclare(channel, config.Exchange.GenerateName(topic), config)
}

// waiting makes what messages wait in. The publisher asks for an exchange, once; so there is one in front of the queue.
type waiting struct {
	suffix string
	opts   *Options
}

// ExchangeDeclare implements amqp.TopologyBuilder.
func (w waiting) ExchangeDeclare(channel *amqp091.Channel, name string, config amqp.Config) error {
	args := amqp091.Table{
		"x-message-ttl":             w.opts.Delay.Milliseconds(),
		"x-dead-letter-exchange":    "", // the one that every queue is bound to by its name
		"x-dead-letter-routing-key": strings.TrimSuffix(name, w.suffix),
	}
	if !w.opts.Classic {
		maps.Copy(args, amqp091.Table{"x-queue-type": "quorum", "x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"})
	}
	if _, err := channel.QueueDeclare(name, true, false, false, false, args); err != nil {
		return fmt.Errorf("the queue %q, in which messages wait: %w", name, err)
	}
	if err := (&amqp.DefaultTopologyBuilder{}).ExchangeDeclare(channel, name, config); err != nil {
		return fmt.Errorf("the exchange %q, in front of the queue in which messages wait: %w", name, err)
	}
	return channel.QueueBind(name, "", name, false, nil)
}

// BuildTopology implements amqp.TopologyBuilder. It refuses: who consumes what waits lets nothing wait.
func (w waiting) BuildTopology(_ *amqp091.Channel, params amqp.BuildTopologyParams, _ amqp.Config, _ watermill.LoggerAdapter) error {
	return fmt.Errorf("amqplater: queue %q: these are the settings of a publisher, not of a subscriber", params.QueueName)
}

// Marshaler makes a marshaler read what has come back. RabbitMQ adds headers to messages that waited in a queue, or that a quorum queue
// delivers again, which are not text; amqp.DefaultMarshaler cannot read these, so they would be refused for ever. Here they are
// dropped. So are the empty messages that watermill-amqp hands to handlers when a connection is cut.
func Marshaler(next amqp.Marshaler) amqp.Marshaler { return marshaler{next} }

type marshaler struct{ next amqp.Marshaler }

// Marshal implements amqp.Marshaler.
func (m marshaler) Marshal(msg *message.Message) (amqp091.Publishing, error) {
	if amqp.IsMessageRedelivered(msg) { // said of the delivery, not of the message
		msg = msg.CopyWithContext()
		delete(msg.Metadata, amqp.MetadataRedeliveredKey)
	}
	return m.next.Marshal(msg)
}

// refusesReturned says whether a marshaler reads a message, and refuses the same one when it has waited. One that does not read the message in
// the first place, because it expects others, cannot be judged.
func refusesReturned(m amqp.Marshaler) (refuses bool) {
	defer func() {
		if recover() != nil {
			refuses = false
		}
	}()
	sent, err := m.Marshal(message.NewMessage(watermill.NewUUID(), []byte("amqplater asks whether messages that come back can be read")))
	if err != nil {
		return false
	}
	headers := maps.Clone(sent.Headers)
	if headers == nil {
		headers = amqp091.Table{}
	}
	reads := func() bool {
		_, err := m.Unmarshal(amqp091.Delivery{
			Acknowledger: nobody{}, Headers: maps.Clone(headers), Body: sent.Body, ContentType: sent.ContentType, ContentEncoding: sent.ContentEncoding,
			CorrelationId: sent.CorrelationId, MessageId: sent.MessageId, Type: sent.Type, AppId: sent.AppId, Timestamp: sent.Timestamp,
		})
		return err == nil
	}
	if !reads() {
		return false
	}
	maps.Copy(headers, amqp091.Table{"x-death": []any{amqp091.Table{"count": int64(1), "reason": "expired"}}, "x-first-death-reason": "expired"})
	return !reads()
}

// nobody acknowledges a message that no broker has sent.
type nobody struct{ amqp091.Acknowledger }

// Unmarshal implements amqp.Marshaler.
func (m marshaler) Unmarshal(d amqp091.Delivery) (*message.Message, error) {
	if d.Acknowledger == nil {
		return nil, errors.New("amqplater: the connection was cut; this is not a message")
	}
	headers := amqp091.Table{}
	for name, value := range d.Headers {
		_, text := value.(string)
		if broker := strings.HasPrefix(name, "x-"); !broker || text && !strings.HasPrefix(name, "x-first-death-") && !strings.HasPrefix(name, "x-last-death-") {
			headers[name] = value
		}
	}
	d.Headers = headers
	return m.next.Unmarshal(d)
}
