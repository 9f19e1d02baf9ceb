// One verb's options and words, and its help.
#pragma once

#include <boost/program_options.hpp>
#include <string>
#include <vector>

namespace ananke {

class CommandOptions {
 public:
  // `verb` as typed ("checkpoint list"), `usage` what follows it.
  CommandOptions(std::string verb, std::string usage, std::string description);
  boost::program_options::options_description_easy_init add() { return visible_.add_options(); }
  // The next word without a name that the verb takes, called `name` in messages. Each must be given.
  void word(const char* name, std::string& value);

  // False: the help was asked for, and printed. Throws Error(usage); also when a word is missing.
  bool read(const std::vector<std::string>& arguments);
  [[noreturn]] void misused(const std::string& what) const;

 private:
  std::string verb_, usage_, description_;
  boost::program_options::options_description visible_{"options"};
  struct Word {
    std::string name;
    std::string* value;
  };
  std::vector<Word> places_;
  std::vector<std::string> words_;
};

}  // namespace ananke
