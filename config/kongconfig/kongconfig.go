// Package kongconfig gives the flags of a configuration to kong:
//
//	flags, err := kongconfig.Define[Config]("service.yaml")
//	…
//	kong.Parse(&cli, flags)
//	cfg, err := config.Load[Config]("service.yaml", flags.Given())
//
// kong parses the flags, and keeps the commands, the arguments and all other flags. The
// file and the environment are read as by any other program. Package config says what
// the flags take.
package kongconfig

import (
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/pleme-io/lifecycle-go/config"
)

// Flags has the flags of a configuration. It is an option of kong.New and kong.Parse,
// for one parser. Make it with [Define].
type Flags struct {
	keys   []string      // of the fields
	fields reflect.Value // a pointer to a struct with a field for each flag
}

// Define makes a flag for each key of T. path and the options have the same meaning as for
// config.Load. Unless path is "", Define also makes --config, which names the file. A program
// that has a flag of that name passes "" here, its own file to config.Load, and
// config.WithEnvPrefix to both, because the prefix follows the name of the file. kong.New
// refuses a name that a flag of the program or of one of its commands has.
func Define[T any](path string, opts ...config.Option) (*Flags, error) {
	keys, err := config.Keys[T](path, opts...)
	if err != nil {
		return nil, err
	}
	f := &Flags{}
	var fields []reflect.StructField
	add := func(key, name, help, placeholder string, typ reflect.Type) {
		f.keys = append(f.keys, key)
		help = strings.ReplaceAll(strings.ReplaceAll(help, "`", ""), "$", "$$") // kong replaces ${…}
		fields = append(fields, reflect.StructField{
			Name: "F" + strconv.Itoa(len(fields)), Type: typ,
			Tag: reflect.StructTag(fmt.Sprintf("name:%q placeholder:%q help:%q", name, placeholder, help)),
		})
	}
	if path != "" {
		add("config", "config", "read the file in place of the program's, none when it is empty", "FILE", reflect.TypeFor[text]())
	}
	for _, k := range keys {
		typ := reflect.TypeFor[text]()
		if k.Type == "true or false" {
			typ = reflect.TypeFor[truth]()
		}
		add(k.Name, strings.TrimPrefix(k.Flag, "-"), k.Usage(), k.Type, typ)
	}
	f.fields = reflect.New(reflect.StructOf(fields))
	return f, nil
}

// Apply adds the flags to the parser; kong calls it.
func (f *Flags) Apply(k *kong.Kong) error {
	if err := kong.Embed(f.fields.Interface()).Apply(k); err != nil {
		return err
	}
	return kong.PostBuild(refuseTaken).Apply(k)
}

// refuseTaken refuses a flag of the program that has the name of a flag of the configuration.
// kong itself does not compare embedded flags with others: one of the two would get the value.
func refuseTaken(k *kong.Kong) error {
	ours, errs := map[string]bool{}, []error(nil)
	isOurs := func(flag *kong.Flag) bool {
		t := flag.Target.Type()
		return t == reflect.TypeFor[text]() || t == reflect.TypeFor[truth]()
	}
	for _, flag := range k.Model.Flags {
		if isOurs(flag) {
			ours[flag.Name] = true
		}
	}
	var look func(node *kong.Node)
	look = func(node *kong.Node) {
		for _, flag := range node.Flags {
			for _, name := range append([]string{flag.Name}, flag.Aliases...) {
				if ours[name] && !isOurs(flag) {
					errs = append(errs, fmt.Errorf("config: the program has a flag --%s already: rename the key or that flag", name))
				}
			}
		}
		for _, child := range node.Children {
			look(child)
		}
	}
	look(k.Model.Node)
	return errors.Join(errs...)
}

// Given returns an option of config.Load with the values of the flags. Call it after kong has
// parsed. A value that kong has from a resolver, such as kong.JSON, counts as a flag's.
func (f *Flags) Given() config.Option {
	texts := map[string]string{}
	for i, key := range f.keys {
		var v text
		switch field := f.fields.Elem().Field(i).Interface().(type) {
		case text:
			v = field
		case truth:
			v = field.text
		}
		if v.Given {
			texts[key] = v.Text
		}
	}
	return config.WithFlags(texts)
}

// text is a flag with a value. Load reads the text.
type text struct {
	Text  string
	Given bool
}

// Decode takes the value from the command line or from a resolver.
func (t *text) Decode(ctx *kong.DecodeContext) error {
	token, err := ctx.Scan.PopValue("value")
	if err != nil {
		return err
	}
	t.Text, t.Given = asText(token.Value), true
	return nil
}

// asText writes the value of a resolver in the form of the command line.
func asText(value any) string {
	var items []string
	switch v := value.(type) {
	case []any:
		for _, item := range v {
			items = append(items, asText(item))
		}
	case map[string]any:
		for key, item := range v {
			items = append(items, key+"="+asText(item))
		}
	case float64:
		return strconv.FormatFloat(v, 'f', -1, 64) // not 1e+07, which is not a whole number
	default:
		return fmt.Sprint(value)
	}
	return strings.Join(items, ",")
}

// truth is a flag that needs no value.
type truth struct{ text }

// Decode takes the value, true without one.
func (t *truth) Decode(ctx *kong.DecodeContext) error {
	if ctx.Scan.Peek().Type != kong.FlagValueToken {
		t.text = text{Text: "true", Given: true}
		return nil
	}
	return t.text.Decode(ctx)
}

// IsBool says that the flag needs no value.
func (t *truth) IsBool() bool { return true }
