// This project and its peers, measured in one run. Never published.
module github.com/pleme-io/lifecycle-go/bench

go 1.26.0

require (
	github.com/AppsFlyer/go-sundheit v0.6.0
	github.com/alexliesenfeld/health v0.8.0
	github.com/go-logr/logr v1.4.3
	github.com/hellofresh/health-go/v5 v5.5.4
	github.com/nats-io/nats.go v1.55.0
	github.com/oklog/run v1.2.0
	github.com/pleme-io/lifecycle-go v0.0.0
	github.com/thejerf/suture/v4 v4.0.6
	go.uber.org/fx v1.24.0
	go.uber.org/goleak v1.3.0
	golang.org/x/perf v0.0.0-20260908200009-22c9c6c9d4da
	golang.org/x/sync v0.24.0
	sigs.k8s.io/controller-runtime v0.25.2
)

require (
	github.com/antithesishq/antithesis-sdk-go v0.8.0-default-no-op // indirect
	github.com/dlclark/regexp2/v2 v2.5.2 // indirect
	github.com/dop251/goja v0.0.0-20260917113740-793a2a65c13b // indirect
	github.com/go-sourcemap/sourcemap v2.1.3+incompatible // indirect
	github.com/google/btree v1.1.3 // indirect
	github.com/google/go-tpm v0.9.8 // indirect
	github.com/google/pprof v0.0.0-20250403155104-27863c87afa6 // indirect
	github.com/klauspost/compress v1.20.3 // indirect
	github.com/minio/highwayhash v1.0.4 // indirect
	github.com/nats-io/jwt/v2 v2.8.2 // indirect
	github.com/nats-io/nats-server/v2 v2.15.2 // indirect
	github.com/nats-io/nkeys v0.4.16 // indirect
	github.com/nats-io/nuid v1.0.1 // indirect
	github.com/tetratelabs/wazero v1.12.0 // indirect
	go.starlark.net v0.0.0-20260908191801-89a6a09411d5 // indirect
	golang.org/x/crypto v0.58.0 // indirect
	golang.org/x/text v0.43.0 // indirect
	golang.org/x/time v0.16.0 // indirect
)

require (
	github.com/aclements/go-moremath v0.0.0-20210112150236-f10218a38794 // indirect
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	github.com/pkg/errors v0.9.1 // indirect
	github.com/pleme-io/lifecycle-go/fleet v0.0.0
	github.com/stretchr/objx v0.5.3 // indirect
	go.opentelemetry.io/otel v1.44.0 // indirect
	go.opentelemetry.io/otel/trace v1.44.0 // indirect
	go.uber.org/dig v1.19.0 // indirect
	go.uber.org/multierr v1.11.0 // indirect
	go.uber.org/zap v1.27.1 // indirect
	golang.org/x/sys v0.49.0 // indirect
	k8s.io/apimachinery v0.37.0 // indirect
)

replace github.com/pleme-io/lifecycle-go => ../

replace github.com/pleme-io/lifecycle-go/fleet => ../fleet
