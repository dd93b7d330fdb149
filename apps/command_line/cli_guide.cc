#include "apps/command_line/cli_guide.h"

#include "apps/command_line/flags.h"
#include "apps/command_line/help.h"

namespace weft {
namespace {

constexpr const char* kIntroduction =
    R"(# The command line

This file is made by `weft completion markdown`, and a test holds it equal: change the tables in
`apps/command_line/flag_table.cc`, the `flag_rows_*.cc` beside it, or the text in `apps/command_line/cli_guide.cc`, then run
`build/weft completion markdown > apps/guide/cli.md`.

    build/weft help generate                   # the common flags; also: weft generate --help
    build/weft generate --help-all             # all flags, with ranges and other names
    build/weft version

## What stays stable

Scripts may rely on all of this from the first release on. A later version may add to it, and changes
none of it.

- The commands, flags with their other names, legal values and environment variables of this file,
  with what they mean; `-` and `_` inside a flag's name are the same.
- The exit codes below, in all commands.
- `cmake --preset default` configures a build in `build/`, `cmake --preset cuda` one with CUDA in
  `build-cuda/`. The program is `build/weft` (`build-cuda/weft`).
- Results go to standard output, and nothing else does. Progress, warnings and errors go to standard
  error. An error is one line that begins with `weft: `.
- `weft generate` prints one line per result: `path framehash seconds`, separated by single spaces.
  The frame hash is the SHA-256 of all RGB frames, 64 hexadecimal digits; a path may hold spaces, the
  other two do not. With `--json` every command prints one object per line, as
  `apps/output.schema.json` describes them. `weft batch` and `weft stream` print the same line for each
  result; `weft stream --live` writes the movie there instead.
- A job in JSON has the fields of `apps/job.schema.json` (`weft.job/v1`); a later form has another name.
- `weft verify` exits with 0 where every tensor of every case is within its bound, with 1 where one is
  not, with 2 for wrong usage, and with 3 where a case or its model is malformed or missing.
- `bash apps/setup.sh` installs what building needs, `bash apps/setup.sh tests` what the tests need.

These may change with every version: the words of messages, of `--help` and of `--dry-run`; `weft bench`
with its flags and its JSON; defaults that the model does not state; checkpoints, which only the version
that wrote them is sure to read; the C++ interface; and the frames of a seed, where the number that
`weft --version` calls the numerics epoch changes.

## Exit codes

| code | meaning |
|---|---|
)";

constexpr const char* kRules = R"(
## Values

- **Precedence.** A flag is stronger than the file of `--config`, and that than the default.
  `--print-config` shows every value and where it comes from.
- **Switches** are `--flag`, or `--flag=on` and `--flag=off`.
- **Sizes in bytes** take `B`, `K`, `M`, `G`, `T` and `KiB`, `MiB`, `GiB`, `TiB`, which are powers of
  1024, and `KB`, `MB`, `GB`, `TB`, which are powers of 1000: `20G` is 20 GiB, `20GB` is 20,000,000,000
  bytes. A number alone is in bytes; capitals do not matter.
- **Texts** (`--prompt`, `--negative-prompt`, `--system`): `@FILE` reads the text from a file, `-` from
  standard input.

## Where results go

- `--output` that ends in `/` is a folder. It receives one clip (`.mp4`) or picture (`.png`) per
  prompt: `00000.mp4`, `00001.mp4`, ... with `--prompt-file`, and a name of date, time, model and seed
  for a single prompt. The default is `outputs/`.
- Any other `--output` is the name of the result itself: `.mp4`, `.webm` and `.gif` are clips, `.png` is
  one picture (with `--num-frames 1`).
- `--frames png` writes every frame as a picture into a folder, `00000.png`, `00001.png`, ...: with
  `-o shot` into `shot/`; with `-o shots/` into a folder inside `shots/` for each prompt.
- Names take fields: `{seed}`, `{model}`, `{width}`, `{height}`, `{frames}`, `{prompt:40}` (at most so
  many characters), `{idx:05}` (the prompt's number from 0, in so many digits), `{date}`, `{time}`.
- An existing result is never replaced without `--overwrite`; results appear whole or not at all. An
  output that exists or cannot be written is refused before the model is read, where the name needs
  no more than the command.

    build/weft generate --model models/pocket --prompt "a blue star" -o stars/
    build/weft generate --model models/pocket --prompt "a blue star" --frames png -o star

## Ranks

`--ranks N` makes N parallel workers, threads of one process. A layout says how they share the work:
`--layout cfg=2,ulysses=2`, or in short `--cfg 2 --ulysses 2`. Without `--ranks` there are as many ranks
as the axes multiply to. Processes of `mpirun` or another launcher are ranks themselves
(`apps/guide/ranks.md`). With `--device cuda` every rank has
a GPU of its own, in turns where there are fewer. `--gpus N` is `--device cuda --ranks N`; where no GPU
is usable it is refused, with exit code 2 and the reason.

    build/weft generate --model models/pocket --prompt "a cyan ring" --ulysses 2 --cfg 2 -o ring.mp4
)";

std::string without_bars(const std::string& text) {  // a bar ends a table's cell
  std::string out;
  for (const char c : text) out += c == '|' ? std::string("\\|") : std::string(1, c);
  return out;
}

std::string code(const std::string& text) { return "`" + text + "`"; }

std::string commands_of(const FlagSpec& spec) {
  std::string with, without;
  int missing = 0;
  for (const CommandSpec& command : command_table()) {
    const bool has = spec.commands & command.command;
    std::string& list = has ? with : without;
    missing += !has;
    list += (list.empty() ? "" : ", ") + std::string(command.name);
  }
  return missing == 0 ? "all" : missing == 1 ? "all but " + without : with;
}

std::string flag_row(const FlagSpec& spec) {
  std::string names = code(std::string("--") + spec.name);
  for (const std::string& alias : split(spec.aliases, ' ')) names += " " + code(alias);
  const std::string value = value_name(spec);
  std::string values = value.empty() ? "" : code(without_bars(value));
  if (spec.legal && spec.type != FlagType::kText) values += " " + std::string(spec.legal);
  return "| " + names + " | " + values + " | " + without_bars(spec.fallback) + " | " +
         without_bars(spec.help) + " | " + commands_of(spec) + " |\n";
}

// "what to draw, write or measure", for all commands together.
std::string title(FlagGroup group) {
  return group == FlagGroup::kInput ? "what to draw, write, measure or compare"
                                    : group_title(kGenerate, group);
}

}  // namespace

std::string cli_guide() {
  std::string out = kIntroduction;
  for (const ExitCode& exit : exit_code_table())
    out += "| " + std::to_string(exit.code) + " | " + exit.meaning + " |\n";
  out += kRules;
  out += "\n## Commands\n\n| command | what it does |\n|---|---|\n";
  for (const CommandSpec& command : command_table()) {
    const std::string operands = std::string(*command.operands ? " " : "") + command.operands;
    out += "| " + code(without_bars("weft " + std::string(command.name) + operands)) + " | " +
           without_bars(command.summary) + " |\n";
  }
  out += "\n## Flags\n";
  for (int i = 0; i < static_cast<int>(FlagGroup::kCount); ++i) {
    const FlagGroup group = static_cast<FlagGroup>(i);
    out += "\n### " + title(group) +
           "\n\n| flag | value | default | meaning | commands |\n|---|---|---|---|---|\n";
    for (const FlagSpec& spec : flag_table())
      if (spec.group == group) out += flag_row(spec);
  }
  out +=
      "\n## Environment\n\nEverything else is said by flags.\n\n| variable | meaning "
      "|\n|---|---|\n";
  for (const auto& [name, meaning] : environment_table())
    out += "| " + code(name) + " | " + meaning + " |\n";
  return out;
}

}  // namespace weft
