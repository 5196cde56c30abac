package vllmapi

import (
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"headgate/simengine"
)

// Server is one simulated vLLM server.
type Server struct {
	cfg     Config
	engine  *simengine.Engine // the loop's alone
	start   time.Time         // time 0 of the model
	mux     *http.ServeMux
	metrics *metrics
	spans   *exporter // nil: none

	mu     sync.Mutex
	inbox  []command
	live   int // sequences that were accepted and have not ended
	closed bool
	stats  simengine.Stats // as of the last event
	wake   chan struct{}   // the inbox has something
}

// New returns a server whose engine is idle. Requests wait until Run is called.
func New(cfg Config) (*Server, error) {
	if err := cfg.err(); err != nil {
		return nil, err
	}
	if cfg.ModelName == "" {
		cfg.ModelName = "headgate-simulated-" + cfg.Engine.Model.Name
	}
	engine, err := simengine.New(cfg.Engine)
	if err != nil {
		return nil, err
	}
	s := &Server{cfg: cfg, engine: engine, start: time.Now(), wake: make(chan struct{}, 1)}
	s.stats = engine.Stats()
	s.metrics = newMetrics(s)
	if cfg.TracesEndpoint != "" {
		s.spans = newExporter(&s.cfg, s.start)
	}
	s.mux = http.NewServeMux()
	s.routes()
	return s, nil
}

// ModelName returns the name under which the model is served.
func (s *Server) ModelName() string { return s.cfg.ModelName }

// Handler returns the server's routes.
func (s *Server) Handler() http.Handler { return s.mux }

// Run drives the engine until ctx ends. Requests that are then in it get an
// error, later ones are refused with 503; spans that are left are sent. It must be
// called once.
func (s *Server) Run(ctx context.Context) {
	if s.spans == nil {
		s.loop(ctx)
		return
	}
	// What finishes in the loop's last round is exported too.
	exporting, stop := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan struct{})
	go func() {
		s.spans.run(exporting)
		close(done)
	}()
	s.loop(ctx)
	stop()
	<-done
}

func (s *Server) routes() {
	s.mux.HandleFunc("POST /v1/chat/completions", s.generating(chatAPI))
	s.mux.HandleFunc("POST /v1/completions", s.generating(completionAPI))
	s.mux.HandleFunc("POST /v1/embeddings", s.embeddings)
	s.mux.HandleFunc("POST /inference/v1/generate", s.generating(tokensAPI))
	s.mux.HandleFunc("POST /v1/chat/completions/render", s.rendering(chatAPI))
	s.mux.HandleFunc("POST /v1/completions/render", s.rendering(completionAPI))
	s.mux.HandleFunc("POST /tokenize", s.tokenize)
	s.mux.HandleFunc("POST /detokenize", s.detokenize)
	s.mux.HandleFunc("GET /v1/models", s.models)
	s.mux.HandleFunc("GET /health", s.health)
	s.mux.HandleFunc("GET /ping", s.health)
	s.mux.HandleFunc("GET /version", s.version)
	s.mux.HandleFunc("GET /load", s.load)
	s.mux.Handle("GET /metrics", promhttp.HandlerFor(s.metrics.registry, promhttp.HandlerOpts{}))
	if s.cfg.DevMode {
		s.mux.HandleFunc("POST /abort_requests", s.abortRequests)
		s.mux.HandleFunc("GET /server_info", s.serverInfo)
	}
}
