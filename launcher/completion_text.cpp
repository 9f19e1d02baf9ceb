#include "launcher/completion_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <vector>

namespace ananke {
namespace {

// What the script's functions know how to complete: "file", "job", "folder", "plugin", "words a b"; empty: nothing.
std::string kind_of(std::string value) {
  const auto ends = [&](const char* text) { return value.ends_with(text); };
  if (value.find('|') != std::string::npos) {
    std::ranges::replace(value, '|', ' ');
    return "words " + value;
  }
  if (value == "SHELL") return "words bash";
  if (value == "PLUGIN") return "plugin";
  if (ends("JOB")) return "job";
  if (ends("FILE") || ends("STORE") || ends("PATH") || value == "INPUT" || value == "SITE") return "file";
  if (ends("DIR") || ends("FOLDER") || value.starts_with("RUN_")) return "folder";
  return "";
}

std::string options_of(const CommandText& command) {
  std::string words;
  for (const OptionText& option : command.options) {
    words += (words.empty() ? "--" : " --") + option.name;
    if (!option.letter.empty()) words += " -" + option.letter;
  }
  return words;
}

// Folders are files to the shell: where a word may be either, files are offered.
std::string kind_of_words(const CommandText& command) {
  std::set<std::string> kinds;
  for (const WordText& word : command.words) kinds.insert(kind_of(word.name));
  for (const char* kind : {"job", "plugin", "file", "folder"}) {
    if (kinds.contains(kind)) return kind;
  }
  return kinds.empty() ? "" : *kinds.rbegin();
}

// One verb's line in the table of the script.
std::string entry(const CommandText& command) {
  std::string text =
      fmt::format("    '{}')\n      options='{}'\n      case $before in\n", command.verb, options_of(command));
  for (const OptionText& option : command.options) {
    if (option.value.empty()) continue;
    const std::string letter = option.letter.empty() ? "" : " | -" + option.letter;
    text += fmt::format("        --{}{}) takes='value {}' ;;\n", option.name, letter, kind_of(option.value));
  }
  return text + fmt::format("        *) takes='word {}' ;;\n      esac\n      ;;\n", kind_of_words(command));
}

// First words, and the second words of those that have some.
std::string verbs_text(std::span<const CommandText> commands) {
  std::vector<std::string> first;
  std::map<std::string, std::string> second;
  for (const CommandText& command : commands) {
    const std::size_t blank = command.verb.find(' ');
    const std::string word = command.verb.substr(0, blank);
    if (std::ranges::find(first, word) == first.end()) first.push_back(word);
    if (blank != std::string::npos) second[word] += command.verb.substr(blank);
  }
  std::string text = "  local verbs='--help";
  for (const std::string& word : first) text += " " + word;
  text += "' second=\n  case ${COMP_WORDS[1]-} in\n";
  for (const auto& [word, others] : second) text += fmt::format("    {}) second='{}' ;;\n", word, others.substr(1));
  return text + "  esac\n";
}

constexpr const char* head = R"bash(# bash completion for ananke, made by `ananke completion bash`.

# Offers what fits to $cur: a kind, and for "words" these.
_ananke_offer() {
  local kind=$1
  shift
  case $kind in
    words) mapfile -t COMPREPLY < <(compgen -W "$*" -- "$cur") ;;
    folder) mapfile -t COMPREPLY < <(compgen -d -- "$cur") ;;
    file) mapfile -t COMPREPLY < <(compgen -f -- "$cur") ;;
    job) mapfile -t COMPREPLY < <(compgen -f -X '!*.textproto' -- "$cur"; compgen -d -- "$cur") ;;
    plugin)
      mapfile -t COMPREPLY < <(compgen -W "$("${COMP_WORDS[0]}" plugins --names 2> /dev/null)" -- "$cur"
        compgen -f -- "$cur")
      ;;
  esac
  [[ $kind == words ]] || compopt -o filenames 2> /dev/null
}

_ananke() {
  local cur=${COMP_WORDS[COMP_CWORD]} before= verb= options= takes= i
  COMPREPLY=()
  # The shell cuts --option=VALUE into three words.
  ((COMP_CWORD > 1)) && before=${COMP_WORDS[COMP_CWORD - 1]}
  [[ $cur != = ]] || cur=
  [[ $before != = ]] || before=${COMP_WORDS[COMP_CWORD - 2]}
)bash";

constexpr const char* find_verb = R"bash(  if ((COMP_CWORD == 1)); then
    _ananke_offer words $verbs
    return
  fi
  verb=${COMP_WORDS[1]}
  if [[ -n $second ]]; then
    if ((COMP_CWORD == 2)) && [[ $cur != -* ]]; then
      _ananke_offer words $second
      return
    fi
    for i in $second; do
      [[ ${COMP_WORDS[2]} != "$i" ]] || verb="$verb $i"
    done
  fi
)bash";

constexpr const char* tail = R"bash(  if [[ $takes == value* || $cur != -* ]]; then
    _ananke_offer ${takes#* }
  else
    _ananke_offer words $options
  fi
}

complete -F _ananke ananke
)bash";

}  // namespace

std::string bash_completion(std::span<const CommandText> commands) {
  std::string text = head + verbs_text(commands) + find_verb + "  case $verb in\n";
  for (const CommandText& command : commands) text += entry(command);
  return text + "    *) return ;;\n  esac\n" + tail;
}

}  // namespace ananke
