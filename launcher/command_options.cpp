#include "launcher/command_options.h"

#include <cstdio>
#include <sstream>

#include "launcher/arguments.h"
#include "runtime/base/error.h"

namespace ananke {

namespace po = boost::program_options;

CommandOptions::CommandOptions(std::string verb, std::string usage, std::string description)
    : verb_(std::move(verb)), usage_(std::move(usage)), description_(std::move(description)) {
  visible_.add_options()("help,h", "this text");
}

void CommandOptions::word(const char* name, std::string& value) {
  word_name_ = name;
  word_ = &value;
}

bool CommandOptions::read(const std::vector<std::string>& arguments) {
  po::options_description all;
  all.add(visible_).add_options()("words", po::value(&words_));
  po::positional_options_description places;
  places.add("words", -1);
  po::variables_map values;
  read_arguments(arguments, all, places, &values);
  if (values.count("help") != 0) {
    std::ostringstream text;
    text << visible_;
    std::printf("usage: ananke %s %s\n\n%s\n\n%s", verb_.c_str(), usage_.c_str(), description_.c_str(),
                text.str().c_str());
    return false;
  }
  if (words_.size() != (word_ != nullptr ? 1 : 0)) {
    misused(fmt::format("{} words without an option's name, needs exactly one {}", words_.size(), word_name_));
  }
  if (word_ != nullptr) *word_ = words_[0];
  return true;
}

void CommandOptions::misused(const std::string& what) const {
  fail(ErrorKind::usage, "{}: {}; usage: ananke {} {}", verb_, what, verb_, usage_);
}

}  // namespace ananke
