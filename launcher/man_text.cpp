#include "launcher/man_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <string>

#include "ananke/version.h"
#include "launcher/exit_codes.h"

namespace ananke {
namespace {

// As roff reads it back: its own characters escaped, and the quotes and hyphens that it would turn into others.
std::string escaped(const std::string& text) {
  std::string result;
  bool line_begins = true;
  for (const char c : text) {
    if (line_begins && (c == '.' || c == '\'')) result += "\\&";
    line_begins = c == '\n';
    switch (c) {
      case '\\': result += "\\e"; break;
      case '-': result += "\\-"; break;
      case '\'': result += "\\(aq"; break;
      case '`': result += "\\(ga"; break;
      case '^': result += "\\(ha"; break;
      case '~': result += "\\(ti"; break;
      case '"': result += "\\(dq"; break;
      default: result += c;
    }
  }
  return result;
}

std::string option_entry(const OptionText& option) {
  std::string title = option.letter.empty() ? "" : fmt::format("\\fB\\-{}\\fR, ", option.letter);
  title += fmt::format("\\fB\\-\\-{}\\fR", escaped(option.name));
  if (!option.value.empty()) title += fmt::format(" \\fI{}\\fR", escaped(option.value));
  const std::string standard = option.standard.empty() ? "" : fmt::format(" (default: {})", escaped(option.standard));
  return fmt::format(".TP\n{}\n{}{}\n", title, escaped(option.text), standard);
}

// Lines that begin with blanks stand as they are; the others are filled.
std::string details_text(const std::string& text) {
  std::string result;
  bool kept = false;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string line = text.substr(begin, end - begin);
    begin = end + 1;
    if (line.empty()) continue;
    const bool keep = line.starts_with("  ");
    if (keep != kept) result += keep ? ".PP\n.nf\n" : ".fi\n.PP\n";
    kept = keep;
    result += escaped(line) + "\n";
  }
  return result + (kept ? ".fi\n" : "");
}

std::string section(const CommandText& command) {
  std::string text = fmt::format(".SS \"ananke {}\"\n.B ananke {}\n", escaped(command.verb), escaped(command.verb));
  if (!command.usage.empty()) text += escaped(command.usage) + "\n";
  text += ".PP\n" + escaped(command.description) + "\n";
  for (const OptionText& option : command.options) {
    if (option.name != "help") text += option_entry(option);
  }
  if (!command.details.empty()) text += ".PP\n" + details_text(command.details);
  return text;
}

std::string exit_status() {
  std::string text = ".SH \"EXIT STATUS\"\n.TP\n.B 0\ndone\n";
  for (const ExitCode& code : exit_codes()) {
    text += fmt::format(".TP\n.B {} ({})\n{}\n", static_cast<int>(code.kind), escaped(name_of(code.kind)),
                        escaped(code.meaning));
  }
  return text;
}

constexpr const char* surroundings = R"(.SH ENVIRONMENT
.TP
.B ANANKE_PLUGIN_PATH
folders that plugins are searched in, separated by colons, before those of the installation
.TP
.B ANANKE_SITE_PATH
folders that site profiles are searched in, likewise
.TP
.B TMPDIR
where the launcher keeps its sockets while a job runs
.SH FILES
In a job\(aqs run folder:
.TP
.I job.textproto, site.textproto
the job and the site as resolved
.TP
.I steps.jsonl
one line of JSON for every step, evaluation and event
.TP
.I logs/
what each process said
.TP
.I checkpoints/step\-N/
one HDF5 file per rank, \fIindex.json\fR and \fICOMPLETE\fR, written last
)";

}  // namespace

std::string man_page(std::span<const CommandText> commands) {
  std::string text = fmt::format(
      ".\\\" made by `ananke man`\n.TH ANANKE 1 \"\" \"ananke {}\" \"User Commands\"\n.SH NAME\nananke \\- pre\\-train "
      "Mixture\\-of\\-Experts transformers\n.SH SYNOPSIS\n.B ananke\n.I command\n[\\fIoptions\\fR]\n.SH DESCRIPTION\n"
      "A job is one text file: model, data, mesh and plugins.\n.B ananke\nvalidates it, starts its workers, watches "
      "them, "
      "and looks after what they leave behind.\nEvery command prints its own description with \\fB\\-\\-help\\fR.\n"
      ".SH OPTIONS\n.TP\n\\fB\\-h\\fR, \\fB\\-\\-help\\fR\nlist the commands\n.TP\n\\fB\\-\\-version\\fR\nprint which "
      "ananke this is\n"
      ".SH COMMANDS\n",
      ANANKE_VERSION);
  for (const CommandText& command : commands) text += section(command);
  return text + exit_status() + surroundings;
}

}  // namespace ananke
