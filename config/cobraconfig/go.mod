// The flags of a configuration for a command of cobra.
module github.com/pleme-io/lifecycle-go/config/cobraconfig

go 1.26.0

require (
	github.com/pleme-io/lifecycle-go v0.0.0
	github.com/spf13/cobra v1.5.0
	github.com/spf13/pflag v1.0.5
	go.uber.org/goleak v1.2.0
)

require (
	github.com/go-viper/mapstructure/v2 v2.4.0 // indirect
	github.com/inconshreveable/mousetrap v1.0.0 // indirect
	github.com/knadh/koanf/maps v0.1.2 // indirect
	github.com/knadh/koanf/parsers/toml/v2 v2.1.0 // indirect
	github.com/knadh/koanf/v2 v2.3.0 // indirect
	github.com/kr/pretty v0.2.1 // indirect
	github.com/mitchellh/copystructure v1.2.0 // indirect
	github.com/mitchellh/reflectwalk v1.0.2 // indirect
	github.com/pelletier/go-toml/v2 v2.2.2 // indirect
	go.yaml.in/yaml/v3 v3.0.3 // indirect
	golang.org/x/sync v0.3.0 // indirect
	gopkg.in/check.v1 v1.0.0-20190902080502-41f04d3bba15 // indirect
)

replace github.com/pleme-io/lifecycle-go => ../../
