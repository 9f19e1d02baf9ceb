// One verb's options and words: what they are read by, and what --help, the completion and the man page are made from.
#pragma once

#include <boost/program_options.hpp>
#include <string>
#include <vector>

#include "launcher/command.h"

namespace ananke {

// How values and words are called says what they may be, for the completion: "a|b" one of these; ...JOB a job file;
// ...FILE, ...STORE, ...PATH and INPUT a file; ...DIR, ...FOLDER and RUN_... a folder; PLUGIN a plugin's name or file.
struct OptionText {
  std::string name;      // "output"
  std::string letter;    // "o"; empty: none
  std::string value;     // "FILE"; empty: it takes none
  std::string standard;  // the default as text; empty: none
  std::string text;
};

struct WordText {
  std::string name;
  bool needed = true;
  bool repeated = false;
};

struct CommandText {
  std::string verb, usage, description;
  std::string details;  // below the options; may be empty
  std::vector<WordText> words;
  std::vector<OptionText> options;
};

class CommandOptions {
 public:
  // `verb` as typed ("checkpoint list"), `usage` what follows it.
  CommandOptions(std::string verb, std::string usage, std::string description);
  boost::program_options::options_description_easy_init add() { return visible_.add_options(); }
  // The next word without a name that the verb takes, called `name` in messages.
  void word(const char* name, std::string& value, bool needed = true);
  // All further words, none or more.
  void words(const char* name, std::vector<std::string>& values);
  void details(std::string text) { text_.details = std::move(text); }

  // False: the help was printed, or the verb described. Throws Error(usage); also when a word is missing.
  bool read(const Arguments& arguments);
  bool given(const char* option) const { return values_.count(option) != 0 && !values_[option].defaulted(); }
  [[noreturn]] void misused(const std::string& what) const;

 private:
  void describe(CommandText* text) const;
  void print_help() const;
  void hand_out(const std::vector<std::string>& words);

  CommandText text_;  // without options
  boost::program_options::options_description visible_{"options"};
  boost::program_options::variables_map values_;
  std::vector<std::string*> places_;
  std::vector<std::string>* rest_ = nullptr;
};

// Every verb that --help lists, in its order.
std::vector<CommandText> describe_commands();

}  // namespace ananke
