mkdir -p /srv/desk
echo Bern > /srv/desk/city.dat
