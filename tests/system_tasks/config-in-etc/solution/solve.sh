#!/bin/bash
printf 'station = Davos\ninterval = 30\n' > /etc/weatherd.conf
