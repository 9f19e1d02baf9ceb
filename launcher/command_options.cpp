#include "launcher/command_options.h"

#include <algorithm>
#include <cstdio>
#include <sstream>

#include "launcher/arguments.h"
#include "launcher/output.h"
#include "runtime/base/error.h"

namespace ananke {

namespace po = boost::program_options;

namespace {

// Program_options keeps a value's name and default as one text: "FILE (=a.txt)".
OptionText text_of(const po::option_description& option) {
  OptionText text;
  text.name = option.long_name();
  const std::string letter = option.canonical_display_name(po::command_line_style::allow_dash_for_short);
  if (letter.size() == 2 && letter[0] == '-') text.letter = letter.substr(1);
  text.text = option.description();
  if (option.semantic()->max_tokens() == 0) return text;
  text.value = option.semantic()->name();
  const std::size_t at = text.value.find(" (=");
  if (at == std::string::npos) return text;
  text.standard = text.value.substr(at + 3, text.value.size() - at - 4);
  text.value.resize(at);
  return text;
}

}  // namespace

CommandOptions::CommandOptions(std::string verb, std::string usage, std::string description) {
  text_.verb = std::move(verb);
  text_.usage = std::move(usage);
  text_.description = std::move(description);
  visible_.add_options()("help,h", "this text");
}

void CommandOptions::word(const char* name, std::string& value, bool needed) {
  text_.words.push_back({name, needed, false});
  places_.push_back(&value);
}

void CommandOptions::words(const char* name, std::vector<std::string>& values) {
  text_.words.push_back({name, false, true});
  rest_ = &values;
}

void CommandOptions::describe(CommandText* text) const {
  *text = text_;
  for (const auto& option : visible_.options()) text->options.push_back(text_of(*option));
}

void CommandOptions::print_help() const {
  std::ostringstream options;
  options << visible_;
  std::printf("usage: ananke %s%s%s\n\n%s\n\n%s", text_.verb.c_str(), text_.usage.empty() ? "" : " ",
              text_.usage.c_str(), text_.description.c_str(), options.str().c_str());
  if (!text_.details.empty()) std::printf("\n%s\n", text_.details.c_str());
}

bool CommandOptions::read(const Arguments& arguments) {
  if (arguments.describe != nullptr) {
    describe(arguments.describe);
    return false;
  }
  std::vector<std::string> words;
  po::options_description all;
  all.add(visible_).add_options()("words", po::value(&words));
  po::positional_options_description places;
  places.add("words", -1);
  try {
    read_arguments(arguments.words, all, places, &values_);
  } catch (const Error& error) {
    fail(error.kind(), "{}: {}; `ananke {} --help` lists the options", text_.verb, error.what(), text_.verb);
  }
  if (values_.count("help") != 0) {
    print_help();
    check_output();
    return false;
  }
  hand_out(words);
  return true;
}

void CommandOptions::hand_out(const std::vector<std::string>& words) {
  std::string names;
  std::size_t needed = 0;
  for (const WordText& word : text_.words) {
    if (!word.needed) continue;
    names += (needed++ > 0 ? " " : "") + word.name;
  }
  if (words.size() < needed || (rest_ == nullptr && words.size() > places_.size())) {
    const char* count = needed == 1 ? "exactly one " : "exactly ";
    misused(fmt::format("{} words without an option's name, needs {}", words.size(),
                        places_.empty() ? "none" : count + names));
  }
  if (std::ranges::find(words, "") != words.end()) misused("a word is empty; is a variable not set?");
  const std::size_t placed = std::min(words.size(), places_.size());
  for (std::size_t i = 0; i < placed; ++i) *places_[i] = words[i];
  if (rest_ != nullptr) rest_->assign(words.begin() + static_cast<std::ptrdiff_t>(placed), words.end());
}

void CommandOptions::misused(const std::string& what) const {
  fail(ErrorKind::usage, "{}: {}; usage: ananke {}{}{}", text_.verb, what, text_.verb, text_.usage.empty() ? "" : " ",
       text_.usage);
}

std::vector<CommandText> describe_commands() {
  std::vector<CommandText> texts;
  for (const Command& command : all_commands()) {
    if (command.hidden) continue;
    Arguments arguments;
    arguments.describe = &texts.emplace_back();
    command.run(arguments);
    ANANKE_CHECK(texts.back().verb == command.name, "verb '{}' describes itself as '{}'", command.name,
                 texts.back().verb);
  }
  return texts;
}

}  // namespace ananke
